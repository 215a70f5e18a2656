#include <queue>
