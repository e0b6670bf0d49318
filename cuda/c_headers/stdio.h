// In the place of the C library's, for compilers that run without files. They know printf, and nothing else of it.
