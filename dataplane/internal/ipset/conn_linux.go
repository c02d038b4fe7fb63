package ipset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/inet"
)

// Conn is a connection to the ipsets of the calling thread's network namespace at the time of Open.
// It is safe for concurrent use.
type Conn struct {
	sockets map[int]*nl.SocketHandle
}

// Open opens a connection.
func Open() (*Conn, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netfilter socket: %w", err)
	}
	return &Conn{map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}}, nil
}

// Close closes the connection.
func (c *Conn) Close() {
	for _, s := range c.sockets {
		s.Close()
	}
}

// CreateTimed creates an empty set whose elements may have a timeout, which rules set with
// "--timeout". If a set with the same name, type and family exists, it stays unchanged. If the name
// belongs to a different set, CreateTimed returns ErrDifferent.
func (c *Conn) CreateTimed(set string, kind SetType, family inet.Family) error {
	req := c.message(nl.IPSET_CMD_CREATE, set)
	req.Flags |= unix.NLM_F_EXCL // without this flag, the kernel accepts an existing set in another family
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_TYPENAME, nl.ZeroTerminated(string(kind))))
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_REVISION, nl.Uint8Attr(revision)))
	af := uint8(unix.AF_INET)
	if family == inet.IPv6 {
		af = unix.AF_INET6
	}
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_FAMILY, nl.Uint8Attr(af)))
	data := nested(nl.IPSET_ATTR_DATA)
	data.AddChild(number(nl.IPSET_ATTR_MAXELEM, MaxEntries))
	data.AddChild(number(nl.IPSET_ATTR_TIMEOUT, 0)) // by default, elements have no timeout
	req.AddData(data)
	_, err := execute(req)
	if errors.Is(err, syscall.EEXIST) {
		if h, headerErr := c.Header(set); headerErr == nil && h.Kind == kind && h.Family == family && h.Timed {
			return nil
		}
	}
	return wrap("creating", set, err)
}

// revision is the oldest revision of hash:ip,port,ip. Every kernel since 3.x supports it.
const revision = 1

// Destroy removes a set. A missing set is not an error. If rules use the set, Destroy returns
// ErrInUse.
func (c *Conn) Destroy(set string) error {
	_, err := execute(c.message(nl.IPSET_CMD_DESTROY, set))
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return wrap("destroying", set, err)
}

// Delete removes elements from a set. Missing elements are not an error.
func (c *Conn) Delete(set string, entries []Element) error {
	return wrap("deleting from", set, c.delete(set, entries))
}

// DestroySoon destroys a set that rules have just stopped using. The kernel frees deleted
// iptables-nft rules late, so DestroySoon waits for up to two seconds.
func (c *Conn) DestroySoon(ctx context.Context, set string) error {
	const patience, pause = 2 * time.Second, 5 * time.Millisecond
	for deadline := time.Now().Add(patience); ; {
		err := c.Destroy(set)
		if !errors.Is(err, ErrInUse) || time.Now().After(deadline) {
			return err
		}
		if !wake.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

func (c *Conn) delete(set string, entries []Element) error {
	for part := range slices.Chunk(entries, batch) {
		req := c.message(nl.IPSET_CMD_DEL, set)
		req.AddData(number(nl.IPSET_ATTR_LINENO, 0))
		all := nested(nl.IPSET_ATTR_ADT)
		for i := range part {
			d := part[i].data()
			d.AddChild(number(nl.IPSET_ATTR_LINENO, uint32(i)))
			all.AddChild(d)
		}
		req.AddData(all)
		if _, err := execute(req); err != nil {
			return err
		}
	}
	return nil
}

// List returns the elements of a set in no particular order. It returns ErrNotFound if the set is
// missing.
func (c *Conn) List(set string) ([]Element, error) {
	members, err := c.Members(set)
	if err != nil {
		return nil, err
	}
	entries := make([]Element, len(members))
	for i := range members {
		entries[i] = members[i].Element
	}
	return entries, nil
}

// Members is like List, but also returns each element's remaining lifetime.
func (c *Conn) Members(set string) ([]Member, error) {
	var l listing
	messages, err := execute(c.message(nl.IPSET_CMD_LIST, set))
	if err != nil {
		return nil, wrap("listing", set, err)
	}
	for _, m := range messages {
		l.read(m)
	}
	return l.entries, nil
}

// Has reports whether the set contains e. If the set is missing, Has returns ErrNotFound.
func (c *Conn) Has(set string, e Element) (bool, error) {
	req := c.message(nl.IPSET_CMD_TEST, set)
	req.AddData(e.data())
	_, err := execute(req)
	if errors.Is(err, nl.IPSetError(nl.IPSET_ERR_EXIST)) {
		return false, nil
	}
	return err == nil, wrap("asking", set, err)
}

// Header returns the properties of a set, or ErrNotFound. Its cost does not depend on the size of
// the set.
func (c *Conn) Header(set string) (Header, error) {
	req := c.message(nl.IPSET_CMD_LIST, set)
	req.AddData(number(nl.IPSET_ATTR_FLAGS, listHeader))
	messages, err := execute(req)
	if err != nil {
		return Header{}, wrap("asking for", set, err)
	}
	var l listing
	for _, m := range messages {
		l.read(m)
	}
	return l.header, nil
}

func execute(req *nl.NetlinkRequest) ([][]byte, error) {
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno >= nl.IPSET_ERR_PRIVATE {
		return nil, nl.IPSetError(errno)
	}
	return messages, err
}

// wrap adds the operation to an error, and converts kernel errors to this package's errors.
func wrap(doing, set string, err error) error {
	var own error
	var errno syscall.Errno
	errors.As(err, &errno)
	switch {
	case err == nil:
		return nil
	case errno == syscall.ENOENT:
		own = ErrNotFound
	case errors.Is(err, nl.IPSetError(nl.IPSET_ERR_TYPE_MISMATCH)), errno == syscall.EEXIST:
		own = ErrDifferent
	case errors.Is(err, nl.IPSetError(nl.IPSET_ERR_REFERENCED)), errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)):
		own = ErrInUse
	case errors.Is(err, nl.IPSetError(nl.IPSET_ERR_FIND_TYPE)), errno == syscall.EINVAL, errno == syscall.EOPNOTSUPP, errno == syscall.EPROTONOSUPPORT:
		own = ErrUnsupported
	default:
		return fmt.Errorf("%s ipset %s: %w", doing, set, err)
	}
	return fmt.Errorf("%s ipset %s: %w", doing, set, own)
}
