// Package runfile is what the files have in common in which a process notes what it has made in the kernel, for the next
// one to find: they are replaced at once, and mean nothing after the next boot, or in another network namespace.
package runfile
