#define TRENDPROBE_KERNELS kBaselineKernels
#define TRENDPROBE_KERNELS_NAME "baseline"
#include "hook/simd_kernels_impl.h"
