// What was compiled in, for the table of horovodrun.
#ifdef HAVE_NCCL
#include <nccl.h>
#else
#define NCCL_VERSION_CODE 0
#endif
#ifdef HAVE_MPI
#include <mpi.h>
#else
#define HAVE_MPI 0
#endif
#ifndef HAVE_GLOO
#define HAVE_GLOO 0
#endif

extern "C" {
long compiled_standard = __cplusplus;
int compiled_nccl = NCCL_VERSION_CODE;
int compiled_mpi = HAVE_MPI;
int compiled_gloo = HAVE_GLOO;

int ranks() {
  int count = 0;
#if HAVE_MPI
  MPI_Init(nullptr, nullptr);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  MPI_Finalize();
#endif
  return count;
}
}
