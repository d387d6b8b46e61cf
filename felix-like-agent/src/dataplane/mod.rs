//! The shell: reads and writes the kernel.
