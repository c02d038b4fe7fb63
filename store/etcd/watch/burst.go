package watch

import "time"

// burst is a series of changes that are processed together after a pause. The zero value has no
// changes.
type burst struct{ first, last time.Time }

func (b *burst) add(now time.Time) {
	b.last = now
	if b.first.IsZero() {
		b.first = now
	}
}

// end returns when the changes must be processed: when quiet has passed without a change, but at
// most longest after the first change. It returns zero if there are no changes.
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
