// Package runfile identifies the current boot and network namespace. A process's record of the
// objects that it has created in the kernel is invalid after the next boot and in other network
// namespaces.
package runfile
