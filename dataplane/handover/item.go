package handover

import "errors"

// Item is one thing that is handed over.
type Item struct {
	// Data describes it, in the sender's form.
	Data []byte
	// Files are its descriptors. The owner of the Item closes them.
	Files []int
}

// ErrUnsupported means that this system has no way to hand sockets over.
var ErrUnsupported = errors.New("this system can't hand sockets over to another process")
