// The CPU kernels' source for AVX-512 as the only instruction set of a library: the compiler makes each 64-byte vector
// of those that it may use. Takes the place of cpu/dispatch.cpp and of all other instruction sets.
#define ATTENTION_EXT_EMULATE_AVX512
#include "../../attention_ext/cpu/isa.cpp"

namespace attention_ext {

const char* choose_instruction_set(const char* name) {
  return *name == '\0' || strcmp(name, ISA_NAME) == 0 ? ISA_NAME : nullptr;
}

const InstructionSet& instruction_set() { return ISA_TABLE; }

}  // namespace attention_ext
