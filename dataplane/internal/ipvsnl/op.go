package ipvsnl

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"vipd/balancer"
)

// Verb is the kind of an [Op].
type Verb uint8

// These are the verbs. They have the kernel's numbers (IPVS_CMD_..., include/uapi/linux/ip_vs.h).
const (
	AddService        Verb = 1
	EditService       Verb = 2
	DeleteService     Verb = 3
	AddDestination    Verb = 5
	EditDestination   Verb = 6
	DeleteDestination Verb = 7
)

// Op is a change, sent as a single message.
type Op struct {
	Verb Verb
	// Service is the virtual server. Only AddService and EditService use fields other than its Key.
	Service Service
	// Destination is the destination to add, edit or delete. DeleteDestination uses only its Addr.
	Destination Destination
}

// String describes the op in error messages.
func (o Op) String() string {
	switch o.Verb {
	case AddService:
		return fmt.Sprintf("adding virtual server %s", o.Service.Key)
	case EditService:
		return fmt.Sprintf("changing virtual server %s", o.Service.Key)
	case DeleteService:
		return fmt.Sprintf("deleting virtual server %s", o.Service.Key)
	case AddDestination:
		return fmt.Sprintf("adding destination %s to virtual server %s", o.Destination.Addr, o.Service.Key)
	case EditDestination:
		return fmt.Sprintf("changing destination %s of virtual server %s", o.Destination.Addr, o.Service.Key)
	case DeleteDestination:
		return fmt.Sprintf("deleting destination %s of virtual server %s", o.Destination.Addr, o.Service.Key)
	}
	return fmt.Sprintf("unknown change %d", uint8(o.Verb))
}

var (
	// ErrExists means that the virtual server or the destination already exists.
	ErrExists = errors.New("it already exists")
	// ErrNoService means that the virtual server does not exist.
	ErrNoService = errors.New("there is no such virtual server")
	// ErrNoDestination means that the virtual server does not have the destination.
	ErrNoDestination = errors.New("the virtual server has no such destination")
	// ErrNoScheduler means that the kernel does not have the scheduler and can't load its module.
	ErrNoScheduler = errors.New("the kernel lacks this scheduler, and its module can't be loaded")
	// ErrNoAnswer means that the kernel did not answer in time, so the result is unknown.
	ErrNoAnswer = errors.New("the kernel did not answer")
	// ErrUnsupported means that IPVS can't be used on this host. The error includes the reason.
	ErrUnsupported = errors.New("IPVS can't be used here")
)

// Refused converts the kernel's error number for a refused op to one of this package's errors.
func (o Op) Refused(errno error) error {
	if errno == nil {
		return nil
	}
	err := errno
	switch errno {
	case syscall.EEXIST:
		err = ErrExists
	case syscall.ESRCH:
		err = ErrNoService
	case syscall.ENOENT:
		if err = ErrNoDestination; o.Verb == AddService || o.Verb == EditService {
			err = fmt.Errorf("scheduler %q: %w", o.Service.Scheduler, ErrNoScheduler)
		}
	case syscall.EINVAL:
		switch to := o.Destination.Addr.Addr(); {
		case o.Verb < AddDestination:
		case to.Is4() != o.Service.Key.Addr.Is4():
			err = fmt.Errorf("only a tunnel can reach a destination of the other address family: %w", errno)
		default:
			err = fmt.Errorf("the kernel can't send packets to %s: %w", to, errno)
		}
	}
	return fmt.Errorf("%s: %w", o, err)
}

// errNone returns the error for reading a missing virtual server.
func errNone(doing string, key balancer.Key) error {
	return fmt.Errorf("%s %s: %w", doing, key, ErrNoService)
}

// Invalid returns the reason why o can't be encoded as a message, or nil.
func (o Op) Invalid() error {
	s, d := &o.Service, &o.Destination
	var err error
	switch {
	case o.Verb < AddService || o.Verb > DeleteDestination || o.Verb == 4: // 4 is IPVS_CMD_GET_SERVICE, which is not a change
		err = errors.New("no such verb")
	case !plain(s.Key.Addr):
		err = fmt.Errorf("%q is not a valid address of a virtual server", s.Key.Addr)
	case s.Key.Proto.Number() == 0:
		err = fmt.Errorf("protocol %q is not tcp, udp or sctp", s.Key.Proto)
	case o.Verb <= EditService && (s.Timeout < 0 || s.Timeout > MaxTimeout || s.Timeout%time.Second != 0):
		err = fmt.Errorf("timeout %s must be a whole number of seconds from 0 to %s", s.Timeout, MaxTimeout)
	case o.Verb <= EditService && (s.Prefix < 0 || s.Prefix >= s.Key.Addr.BitLen()):
		err = fmt.Errorf("prefix length %d: %w", s.Prefix, syscall.ERANGE)
	case o.Verb <= EditService && len(s.Scheduler) >= schedulerSize:
		err = fmt.Errorf("scheduler %q: %w", s.Scheduler, ErrNoScheduler)
	case o.Verb >= AddDestination && !plain(d.Addr.Addr()):
		err = fmt.Errorf("%q is not a valid address of a destination", d.Addr)
	case o.Verb >= AddDestination && o.Verb != DeleteDestination && method(d.Forward) < 0:
		err = fmt.Errorf("%q is not a forwarding method", d.Forward)
	case o.Verb >= AddDestination && o.Verb != DeleteDestination && (d.Weight < 0 || d.Weight > math.MaxInt32):
		err = fmt.Errorf("weight %d: %w", d.Weight, syscall.ERANGE)
	case o.Verb >= AddDestination && o.Verb != DeleteDestination && (d.Upper > math.MaxInt32 || d.Lower > d.Upper): // not all kernels check Upper
		err = fmt.Errorf("thresholds %d and %d: %w", d.Upper, d.Lower, syscall.ERANGE)
	default:
		return nil
	}
	return fmt.Errorf("%s: %w", o, err)
}

// plain reports whether a has the form in which the kernel returns addresses.
func plain(a netip.Addr) bool { return a.IsValid() && !a.Is4In6() && a.Zone() == "" }

// schedulerSize is the maximum size of a scheduler's name, including the terminating zero
// (IP_VS_SCHEDNAME_MAXLEN).
const schedulerSize = 16

// methods holds the forwarding methods in the order of their numbers, from IP_VS_CONN_F_MASQ.
var methods = [...]balancer.Forward{balancer.NATForward, LocalForward, balancer.TunnelForward, balancer.DRForward, BypassForward}

// method returns the number of a forwarding method, or -1.
func method(f balancer.Forward) int { return slices.Index(methods[:], f) }
