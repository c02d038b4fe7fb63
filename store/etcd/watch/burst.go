package watch

import "time"

// burst is a series of changes that are processed together once no more come. The zero value has
// none.
type burst struct{ first, last time.Time }

// add adds a change.
func (b *burst) add(now time.Time) {
	b.last = now
	if b.first.IsZero() {
		b.first = now
	}
}

// end returns when no change has come for quiet, at most longest after the first; zero means there
// are none.
func (b burst) end(quiet, longest time.Duration) time.Time {
	if b.first.IsZero() {
		return time.Time{}
	}
	end, latest := b.last.Add(quiet), b.first.Add(longest)
	if latest.Before(end) {
		return latest
	}
	return end
}
