package store

import "time"

// Pending is a change that is served before it is confirmed. A confirmation keeps the change. An
// abort or the deadline reverts it.
type Pending struct {
	// Place is the file that the change would replace, or the key of the change in etcd.
	Place string `json:"place"`
	// By is the author; "" means unknown.
	By string `json:"by,omitempty"`
	// Since is the time of the change, and Until is its deadline.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// On selects the nodes that serve a change in etcd. If empty, all nodes serve it.
	On []string `json:"on,omitempty"`
	// Text is the new text of a file, and Former is the SHA-256 sum of the text that it replaces.
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
