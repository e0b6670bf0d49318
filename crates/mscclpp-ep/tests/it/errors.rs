//! Wrong arguments, ranks that differ, tokens that are too many, ranks that die.
