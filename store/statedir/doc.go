// Package statedir keeps the state that must outlive a restart in state_dir, in a file for each
// part. A write that fails is a problem, and never stops traffic.
//
//	Keep, Write -> the newest state of the file, which waits -> a goroutine while there is something to write -> atomicfile
//
// The disk may hang, so only a start waits for it, for some seconds. Each file has at most one
// state that is being written, and one newer state that waits. Failed writes are repeated. A file
// is replaced as a whole, so a crash leaves the old or the new file. It has a version, so no
// program misreads it. The writers alone know the content.
package statedir
