// Package statedir saves the state that must survive a restart in state_dir, with a file for each
// part. A failed write is a problem, but never stops traffic.
//
//	Keep, Write -> the newest state of the file, which waits -> a goroutine while there is something to write -> atomicfile
//
// The disk may hang, so only a start waits for the disk, and only for several seconds. At any time,
// each file has at most one state that is being written and one newer state that waits. Failed
// writes are retried. A file is replaced as a whole, so after a crash either the old or the new
// file exists. A file has a version number, so other versions of the program don't misread it. Only
// the writers know the format of the content.
package statedir
