package ipvsnl

import (
	"cmp"
	"hash/fnv"
	"sync"

	"vipd/balancer"
)

// Mark returns the firewall mark of the virtual server of a range of ports, because the kernel's
// keys have a single port. The mark depends only on the key, so a new process finds the virtual
// servers of an earlier process. If two keys have the same mark, which is very rare, the kernel
// refuses the second virtual server.
func Mark(k balancer.Key) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.String())) // it returns no errors
	return cmp.Or(h.Sum32(), 1)
}

// swapPort converts the port of a destination of a virtual server to the kernel's port, and back.
// For a range of ports, the first port of the range stands for the kernel's port 0, which keeps the
// port of the connection.
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

// marks holds the keys of the ranges of ports in requests, by their marks. It is safe for
// concurrent use.
type marks struct{ keys sync.Map }

// note records the key of a request.
func (m *marks) note(k balancer.Key) {
	if k.Port.IsRange() {
		m.keys.Store(Mark(k), k)
	}
}

// find returns the key with a mark. It returns false for an unknown mark, which belongs to another
// program's virtual server. A nil marks knows none.
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
