// Package sockerr recognises socket errors by their POSIX names. On Windows, their numbers differ
// from the constants in package syscall.
package sockerr
