package store

import "time"

// Pending is a change that is in effect before it is confirmed. A confirmation keeps the change. An
// abort or the deadline reverts it.
type Pending struct {
	// Place is the file that the change would replace, or the change's key in etcd.
	Place string `json:"place"`
	// By is the author; "" means unknown.
	By string `json:"by,omitempty"`
	// Since is when the change started, and Until is its deadline.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// On selects the nodes that a change in etcd is for. If empty, it is for all nodes.
	On []string `json:"on,omitempty"`
	// Text is a file's new text, and Former is the SHA-256 sum of the text that it replaces.
	Text   string `json:"text"`
	Former string `json:"former"`
}

// Outcome is a step in the life of a pending change.
type Outcome string

// These are the outcomes. A process that resumes a pending change after a restart reports Started
// again.
const (
	Started   Outcome = "started"
	Confirmed Outcome = "confirmed"
	Aborted   Outcome = "aborted"
	Expired   Outcome = "expired"
)
