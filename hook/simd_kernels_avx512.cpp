#define TRENDPROBE_KERNELS kAvx512Kernels
#define TRENDPROBE_KERNELS_NAME "avx512"
#include "hook/simd_kernels_impl.h"
