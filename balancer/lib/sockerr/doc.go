// Package sockerr tells the errors of sockets apart by the names of POSIX, also on Windows, where they have other numbers than the
// constants of those names in package syscall.
package sockerr
