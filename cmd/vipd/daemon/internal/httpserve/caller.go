package httpserve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// caller is the process at the other end of a connection on the API's socket.
type caller struct {
	uid int
	// groups lists the primary and supplementary groups of the process.
	groups []int
}

// callerKey is the key of a connection's caller in the context of its requests.
type callerKey struct{}

// withCaller adds the process that opened c to ctx. If the system can't report this process, only
// the socket's file mode restricts callers.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if s, ok := c.(*slotted); ok {
		c = s.Conn
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	who, err := peer(u)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return ctx
	case err != nil:
		return context.WithValue(ctx, callerKey{}, caller{uid: unknownUser})
	}
	return context.WithValue(ctx, callerKey{}, who)
}

// unknownUser is the user of a caller whose credentials can't be read. No process has this user,
// because it is the kernel's "no user" (uid_t -1).
const unknownUser = -1

// MayChange reports whether the caller of r may change the running vipd. Root and the user that
// runs vipd always may. If group is not "", its members also may. If MayChange returns false, name
// is the caller's name. On systems that can't report callers, only the socket's file mode restricts
// them.
func MayChange(r *http.Request, group string) (name string, ok bool) {
	who, known := r.Context().Value(callerKey{}).(caller)
	if !known || who.mayChange(group) {
		return "", true
	}
	return who.name(), false
}

func (c caller) mayChange(group string) bool {
	if c.uid == 0 || c.uid == os.Geteuid() {
		return true
	}
	if group == "" {
		return false
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return false
	}
	gid, err := strconv.Atoi(g.Gid)
	return err == nil && slices.Contains(c.groups, gid)
}

// name returns the caller's user name, or "uid N" if the user has no name.
func (c caller) name() string {
	if u, err := user.LookupId(strconv.Itoa(c.uid)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid %d", c.uid)
}

// maxClaim is the maximum length in bytes of the name that a caller claims in addition to its user
// name.
const maxClaim = 64

// Author returns the author of a request: the user that the kernel reports, followed by the claimed
// name in parentheses, such as the user that called sudo. It returns "" if neither is known.
func Author(r *http.Request, claimed string) string {
	claimed = strings.TrimSpace(strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) && !strings.ContainsRune("()", c) {
			return c
		}
		return -1
	}, claimed))
	claimed = strings.ToValidUTF8(claimed[:min(len(claimed), maxClaim)], "")
	who, known := r.Context().Value(callerKey{}).(caller)
	if !known {
		return claimed
	}
	name := who.name()
	if claimed == "" || claimed == name {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, claimed)
}
