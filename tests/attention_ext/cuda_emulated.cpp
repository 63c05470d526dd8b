// The CUDA operators as CPU operators of the library attention_ext_emulated: the sources of every kernel and of the
// code that launches it, on the device of cuda_emulation.h. Compiled with -Dattention_ext=attention_ext_emulated.
#include "../../attention_ext/cuda/operators.cu"
#include "../../attention_ext/schema.cpp"
