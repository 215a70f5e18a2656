extern "C" int ncclGetVersion(int *version) { *version = 22105; return 0; }
