// Package statedir keeps in state_dir what must outlive a restart, a file for each part that has
// something to keep. What can't be kept is a problem that is shown, and never stops traffic.
//
//	Keep, Write -> the newest state of the file, which waits -> a goroutine while there is something to write -> atomicfile
//
// Nobody waits for the disk, which may hang, but a start, for some seconds: of each file one state
// is being written, and one, the newest, waits. What an attempt has not written is tried again. A
// file is replaced as a whole, so that a crash leaves the old one or the new one, and has a
// version, so that no program reads what it would misread. What is in the files is the business of
// those who write them.
package statedir
