package health

import "time"

// Outcome is what a check came to.
type Outcome string

// The outcomes. The zero value is that of no check at all.
const (
	// Passed: the target did what the check asks for.
	Passed Outcome = "passed"
	// Failed: it did not.
	Failed Outcome = "failed"
	// NotRun: this host could not carry the check out (no file descriptors, no such source address, a certificate file
	// that is not there). That says nothing of the target, so it counts for nothing; what is wrong is in Result.Text.
	NotRun Outcome = "not run"
)

// Result is one check's.
type Result struct {
	Outcome Outcome `json:"outcome"`
	// Began is when the check began, and Took how long it was under way.
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took"`
	// Text says in a few words what was seen: "connection refused", "answered 200 OK".
	Text string `json:"text"`
}

// Ended is when the check was over.
func (r Result) Ended() time.Time { return r.Began.Add(r.Took) }
