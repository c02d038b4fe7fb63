// Package runfile tells this boot and this network namespace from others: what a process notes of what it has made in the
// kernel means nothing after the next boot, or in another network namespace.
package runfile
