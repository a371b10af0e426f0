//! cairn-c
