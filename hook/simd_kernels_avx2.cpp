#define TRENDPROBE_KERNELS kAvx2Kernels
#define TRENDPROBE_KERNELS_NAME "avx2"
#include "hook/simd_kernels_impl.h"
