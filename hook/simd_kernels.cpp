#include "hook/simd_kernels.h"

#ifdef TRENDPROBE_X86_64_KERNELS
#include <cpuid.h>
#endif

namespace trendprobe::simd {
namespace {

#ifdef TRENDPROBE_X86_64_KERNELS
// Not every compiler's __builtin_cpu_supports knows this one.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

const Kernels& choose() {
#ifdef TRENDPROBE_X86_64_KERNELS
  // These ask the operating system, too, whether it saves the registers.
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    return kAvx512Kernels;
  }
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c()) {
    return kAvx2Kernels;
  }
#endif
  return kBaselineKernels;
}

}  // namespace

const Kernels& best_kernels() {
  static const Kernels& best = choose();
  return best;
}

}  // namespace trendprobe::simd
