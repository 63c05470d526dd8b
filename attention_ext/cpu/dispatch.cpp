// Selects the instruction set at run time.
#include <atomic>
#include <cstring>

#include "kernels.h"

namespace attention_ext {

extern const InstructionSet instruction_set_generic;
#ifdef ATTENTION_EXT_X86
extern const InstructionSet instruction_set_avx2;
extern const InstructionSet instruction_set_avx512;
#endif

namespace {

std::atomic<const InstructionSet*> chosen{nullptr};

bool runs_here(const InstructionSet& set) {
#ifdef ATTENTION_EXT_X86
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
    &instruction_set_avx512, &instruction_set_avx2,
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
