// Selects the instruction set at run time.
#include <atomic>
#include <cstring>
#ifdef ATTENTION_EXT_X86
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels.h"

namespace attention_ext {

extern const InstructionSet instruction_set_generic;
#ifdef ATTENTION_EXT_X86
extern const InstructionSet instruction_set_avx2;
extern const InstructionSet instruction_set_avx512;
extern const TileKernels tile_kernels_amx, tile_kernels_avx512_bf16;
#endif

namespace {

std::atomic<const InstructionSet*> chosen{nullptr};

#ifdef ATTENTION_EXT_X86
// AVX-512, and tiles for bfloat16.
InstructionSet with_tiles(const char* name, const TileKernels& tiles) {
  InstructionSet set = instruction_set_avx512;
  set.name = name;
  set.tiles = &tiles;
  return set;
}
const InstructionSet instruction_set_amx = with_tiles("amx", tile_kernels_amx);
const InstructionSet instruction_set_avx512_bf16 = with_tiles("avx512_bf16", tile_kernels_avx512_bf16);

bool avx512_bf16_runs_here() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1;
}

// Whether the processor has AMX for bfloat16, and Linux lets this process use it: it asks to be asked, because the
// tiles' 8 KiB lengthen every signal's frame, and refuses if a signal stack is too small for that.
bool amx_runs_here() {
#ifdef __linux__
  unsigned a, b, c, d;
  constexpr unsigned tiles_in_d = 1u << 24, bf16_in_d = 1u << 22;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (tiles_in_d | bf16_in_d)) != (tiles_in_d | bf16_in_d))
    return false;
  constexpr long ask_for_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, ask_for_permission, tile_data) == 0;
#else
  return false;
#endif
}
#endif

bool runs_here(const InstructionSet& set) {
#ifdef ATTENTION_EXT_X86
  if (&set == &instruction_set_amx) return runs_here(instruction_set_avx512_bf16) && amx_runs_here();
  if (&set == &instruction_set_avx512_bf16) return runs_here(instruction_set_avx512) && avx512_bf16_runs_here();
  if (&set == &instruction_set_avx512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
  if (&set == &instruction_set_avx2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#endif
  return &set == &instruction_set_generic;
}

const InstructionSet* const fastest_first[] = {
#ifdef ATTENTION_EXT_X86
    &instruction_set_amx, &instruction_set_avx512_bf16, &instruction_set_avx512, &instruction_set_avx2,
#endif
    &instruction_set_generic};

}  // namespace

const char* choose_instruction_set(const char* name) {
  for (const InstructionSet* set : fastest_first)
    if ((*name == '\0' || std::strcmp(name, set->name) == 0) && runs_here(*set)) {
      chosen = set;
      return set->name;
    }
  return nullptr;
}

const InstructionSet& instruction_set() {
  if (!chosen) choose_instruction_set("");
  return *chosen;
}

}  // namespace attention_ext
