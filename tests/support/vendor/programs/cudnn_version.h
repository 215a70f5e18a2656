/* Of the tests: the version, in the places where cuDNN's own header has it. */
#define CUDNN_MAJOR @major@
#define CUDNN_MINOR @minor@
#define CUDNN_PATCHLEVEL @patch@
