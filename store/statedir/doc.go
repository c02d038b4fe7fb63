// Package statedir saves the state that must survive a restart in state_dir, with a file for each
// part. A failed write is reported as a problem, but never stops traffic.
//
//	Keep, Write -> the newest state of the file, which waits -> a goroutine while there is something to write -> atomicfile
//
// The disk may hang, so reads and Close wait for it only for several seconds, and other calls do
// not wait. At any time, each file has at most one state that is being written and one newer state
// that waits. Failed writes are retried. A file is replaced as a whole, so after a crash either the
// old or the new file exists. A file has a version number, so other versions of the program don't
// misread it. Only the writers know the format of the content.
package statedir
