// The AVX-512 kernels' source as the only instruction set of a library, with AMX's tiles in plain loops; the compiler
// splits each 64-byte vector into vectors that the machine supports. Replaces cpu/dispatch.cpp and all other
// instruction sets.
#define ATTENTION_EXT_EMULATE_AVX512
#define ATTENTION_EXT_EMULATE_AMX
#include "../../attention_ext/isa.cpp"
#undef VECTOR_BYTES
#include "../../attention_ext/tiles.cpp"

namespace attention_ext {

namespace {

const InstructionSet with_tiles = [] {
  InstructionSet set = ISA_TABLE;
  set.name = "amx";
  set.tiles = &tile_kernels_amx;
  return set;
}();
const InstructionSet* chosen = &with_tiles;

}  // namespace

const char* choose_instruction_set(const char* name) {
  const bool without = strcmp(name, ISA_NAME) == 0;
  if (*name != '\0' && !without && strcmp(name, "amx") != 0) return nullptr;
  chosen = without ? &ISA_TABLE : &with_tiles;
  return chosen->name;
}

const InstructionSet& instruction_set() { return *chosen; }

}  // namespace attention_ext
