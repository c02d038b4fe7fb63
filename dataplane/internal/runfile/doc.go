// Package runfile identifies this boot and this network namespace. A process's record of what it
// has created in the kernel is invalid after the next boot, and in another network namespace.
package runfile
