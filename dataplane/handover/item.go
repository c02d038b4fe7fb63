package handover

import "errors"

// Item is an object that is handed over.
type Item struct {
	// Data describes it in the sender's format.
	Data []byte
	// Files are its descriptors. The owner of the Item closes them.
	Files []int
}

// ErrUnsupported means that this system can't hand over sockets.
var ErrUnsupported = errors.New("this system can't hand sockets over to another process")
