// The floating-point arithmetic that results are defined in.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace trendprobe {

/// While one lives, its thread rounds to nearest, keeps denormals and traps nothing, whatever the
/// surrounding program has chosen (torch.set_flush_denormal). Give it back to the same thread.
class FloatingPointState {
 public:
  FloatingPointState() : before_(get()) {
    if ((before_ & ~kFlags) != kStandard) set(kStandard);
  }
  FloatingPointState(const FloatingPointState&) = delete;
  FloatingPointState& operator=(const FloatingPointState&) = delete;
  ~FloatingPointState() {
    if ((before_ & ~kFlags) != kStandard) set(before_);
  }

 private:
#if defined(__x86_64__)
  using Register = unsigned;
  static constexpr Register kFlags = 0x3F;  // what has happened, not how to compute
  static constexpr Register kStandard = 0x1F80;
  static Register get() { return _mm_getcsr(); }
  static void set(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  static constexpr Register kFlags = 0;
  static constexpr Register kStandard = 0;
  static Register get() {
    Register value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Register = unsigned;
  static constexpr Register kFlags = 0;
  static constexpr Register kStandard = 0;
  static Register get() { return kStandard; }
  static void set(Register) {}
#endif

  Register before_;
};

}  // namespace trendprobe
