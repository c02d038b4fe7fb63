package health

import "time"

// Outcome is the outcome of a check.
type Outcome string

// These are the outcomes. The zero value means that no check was made.
const (
	// Passed means that the target met the check's conditions.
	Passed Outcome = "passed"
	// Failed means that the target did not meet the check's conditions.
	Failed Outcome = "failed"
	// NotRun means that this host could not run the check (no file descriptors, no such source
	// address, a missing certificate file). The result says nothing about the target, and is
	// ignored. Result.Text contains the reason.
	NotRun Outcome = "not run"
)

// Result is the result of one check.
type Result struct {
	Outcome Outcome `json:"outcome"`
	// Began is when the check started, and Took is how long it took.
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took"`
	// Text describes the result in a few words: "connection refused", "answered 200 OK".
	Text string `json:"text"`
}

// Ended returns when the check ended.
func (r Result) Ended() time.Time { return r.Began.Add(r.Took) }
