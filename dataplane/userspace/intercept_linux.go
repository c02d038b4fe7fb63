package userspace

import "fmt"

func newInterception(want Interception, d *Dataplane) (interception, string, error) {
	switch want {
	case Bind, Auto, "":
		return bind{}, "bind", nil
	}
	return nil, "", fmt.Errorf("unknown interception %q: auto, redirect and bind are possible", want)
}
