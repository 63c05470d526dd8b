// The AVX-512 kernels' source as the only instruction set of a library; the compiler splits each 64-byte vector into
// vectors that the machine supports. Replaces cpu/dispatch.cpp and all other instruction sets.
#define ATTENTION_EXT_EMULATE_AVX512
#include "../../attention_ext/isa.cpp"

namespace attention_ext {

const char* choose_instruction_set(const char* name) {
  return *name == '\0' || strcmp(name, ISA_NAME) == 0 ? ISA_NAME : nullptr;
}

const InstructionSet& instruction_set() { return ISA_TABLE; }

}  // namespace attention_ext
