"""The commands of `asr`, one module each; `asr.cli` imports a command when it is called."""
