/* Of the tests: the version, in the places where NCCL's own nccl.h has it. */
#define NCCL_MAJOR @major@
#define NCCL_MINOR @minor@
#define NCCL_PATCH @patch@
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE @nccl_code@
