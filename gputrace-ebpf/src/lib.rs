#![no_std]
//! wire types
