package failover

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/store/statedir"
)

// memory holds this host's standby setting and the last changes to each group. Both survive a
// restart. It is only used with VRRP, because etcd stores both for a fleet.
type memory struct {
	file *statedir.File

	mu   sync.Mutex // guards kept
	kept memoryFile
}

type memoryFile struct {
	Version int                     `json:"version"`
	Standby *api.Standby            `json:"standby,omitempty"`
	Changes map[string][]keptChange `json:"changes,omitempty"`
}

// keptChange is a change to a group. Clock is the time of the change on vipd owner's clock. It
// shows whether a reported change is already saved.
type keptChange struct {
	Clock local.Time `json:"clock"`
	api.GroupChange
}

// maxChanges is the maximum number of changes that are saved for each group.
const maxChanges = 10

// unread is the author of a standby setting that results from an unreadable file.
const unread = "vipd"

// load reads the file that the previous process wrote. If the file can't be read, load puts this
// host on standby until an operator resumes it, because it might have been on standby before.
func (m *memory) load(dir *statedir.Dir) {
	m.file = dir.File("ownership.json", "requests to put this host on standby are refused", statedir.Small)
	if _, err := m.file.Decode(&m.kept); err != nil {
		reason := fmt.Sprintf("%s can't be read: %s", m.file.Path(), err)
		m.kept = memoryFile{Standby: &api.Standby{By: unread, Reason: reason, Since: time.Now().UTC().Truncate(time.Second)}}
		m.file.Keep(statedir.Text(m.kept.copy()))
	}
}

// problem returns the reason why this host is on standby although no operator requested that, or
// "".
func (m *memory) problem() string {
	s := m.standby()
	if s == nil || s.By != unread {
		return ""
	}
	return fmt.Sprintf("this host is on standby, because it might have been on standby before: %s; \"vipctl node resume\" ends the standby", s.Reason)
}

// standby returns this host's standby setting, or nil if it is not on standby.
func (m *memory) standby() *api.Standby {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept.Standby
}

// setStandby saves whether this host is on standby, and applies it. If it can't save this, it
// changes nothing.
func (m *memory) setStandby(s *api.Standby) error {
	m.mu.Lock()
	next := m.kept
	m.mu.Unlock()
	next.Standby = s
	if err := <-m.file.Write(statedir.Text(next.copy())); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept.Standby = s
	m.file.Keep(statedir.Text(m.kept.copy())) // also save the changes since the copy
	return nil
}

// copy returns a copy of f that a writer may read later.
func (f memoryFile) copy() memoryFile {
	f.Version = statedir.Version
	changes := map[string][]keptChange{}
	for group, all := range f.Changes {
		changes[group] = slices.Clone(all)
	}
	f.Changes = changes
	return f
}

// note saves the changes in a status that are not saved yet.
func (m *memory) note(s *vrrp.Status, now time.Time) {
	if s == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	added := false
	for _, g := range s.Groups {
		for _, c := range g.Changes {
			if slices.ContainsFunc(m.kept.Changes[g.Name], func(k keptChange) bool { return k.Clock == c.At && k.To == c.To && k.Text == c.Text }) {
				continue
			}
			if m.kept.Changes == nil {
				m.kept.Changes = map[string][]keptChange{}
			}
			at := now.Add(-s.At.Since(c.At)).UTC().Truncate(time.Millisecond)
			all := append(m.kept.Changes[g.Name], keptChange{c.At, api.GroupChange{At: at, From: c.From, To: c.To, Why: c.Why, Text: c.Text}})
			m.kept.Changes[g.Name] = all[max(0, len(all)-maxChanges):]
			added = true
		}
	}
	if added {
		m.file.Keep(statedir.Text(m.kept.copy()))
	}
}

// changes returns the last changes to a group, oldest first.
func (m *memory) changes(group string) (all []api.GroupChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.kept.Changes[group] {
		all = append(all, c.GroupChange)
	}
	return all
}
