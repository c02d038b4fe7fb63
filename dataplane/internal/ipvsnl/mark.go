package ipvsnl

import (
	"cmp"
	"hash/fnv"
	"sync"

	"vipd/balancer"
)

// Mark returns the firewall mark of the virtual server for a port range, because the kernel's keys
// have a single port. The mark depends only on the key, so a new process finds an earlier process's
// virtual servers. If two keys have the same mark, which is very rare, the kernel refuses the
// second virtual server.
func Mark(k balancer.Key) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.String())) // it returns no errors
	return cmp.Or(h.Sum32(), 1)
}

// swapPort converts a destination's port to the kernel's port, and back. k is the virtual server's
// key. For a port range, the range's first port represents the kernel's port 0, which keeps the
// connection's port.
func swapPort(k balancer.Key, port uint16) uint16 {
	switch {
	case !k.Port.IsRange():
	case port == 0:
		return k.Port.First()
	case port == k.Port.First():
		return 0
	}
	return port
}

// marks maps marks to the port range keys that requests have contained. It is safe for concurrent
// use.
type marks struct{ keys sync.Map }

func (m *marks) note(k balancer.Key) {
	if k.Port.IsRange() {
		m.keys.Store(Mark(k), k)
	}
}

// find returns the key with a mark. It returns false for an unknown mark, which belongs to another
// program's virtual server. If m is nil, all marks are unknown.
func (m *marks) find(mark uint32) (k balancer.Key, ok bool) {
	if m == nil {
		return k, false
	}
	v, ok := m.keys.Load(mark)
	if ok {
		k, ok = v.(balancer.Key)
	}
	return k, ok
}
