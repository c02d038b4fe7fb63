package etcd

import "time"

// Hasten shortens the times of a source for tests: what it notices after seconds it notices at once.
func (s *Source) Hasten() {
	s.timing.ask, s.timing.silence = 50*time.Millisecond, 2*time.Second
	s.timing.call, s.timing.page = time.Second, 10*time.Second
	s.timing.jitter, s.timing.slowest = 20*time.Millisecond, 200*time.Millisecond
	s.timing.pageKeys, s.timing.knock = 7, 100*time.Millisecond
}
