package handover

import "errors"

// Item is an object that a process hands over.
type Item struct {
	// Data describes the object in the sender's format.
	Data []byte
	// Files holds the object's file descriptors. The owner of the Item must close them.
	Files []int
}

// ErrUnsupported means that this system can't hand over sockets.
var ErrUnsupported = errors.New("this system can't hand sockets over to another process")
