//! cairn
#![no_std]
