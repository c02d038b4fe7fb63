package lab

import (
	"fmt"
	"testing"
)

// named is a testing.TB with a different name. Its Fatalf panics.
type named struct {
	testing.TB
	name string
}

func (n named) Name() string              { return n.name }
func (n named) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// TestTestsThatNeedIPVSHaveItInTheirNames calls NeedIPVS from tests whose names lack the prefix.
// NeedIPVS must fail these tests, because they would never run in the guest.
func TestTestsThatNeedIPVSHaveItInTheirNames(t *testing.T) {
	for _, name := range []string{"TestDrain", "TestDrain/TestIPVS", "BenchmarkDrain", "TestipvsDrain"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s may need IPVS, but runs in no guest", name)
				}
			}()
			NeedIPVS(named{t, name})
		}()
	}
}
