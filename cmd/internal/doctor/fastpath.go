package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// checkFastPath lists other programs' chains that filter forwarded packets. With fast_path,
// established connections bypass these chains, which neither count them nor drop them if a rule is
// added later.
func checkFastPath(ctx context.Context, o *observed) []Finding {
	name := o.mode().Name
	if len(o.Config.FastPath) == 0 || name != config.IPTablesMode && name != config.NFTablesMode {
		return nil
	}
	var places []string
	for _, b := range o.backends {
		rules := slices.DeleteFunc(slices.Clone(b.chainOf("filter", "FORWARD").rules), func(rule string) bool {
			return strings.HasPrefix(target(rule), "VIPD-")
		})
		if len(rules) > 0 {
			places = append(places, "FORWARD of "+b.program)
		}
	}
	if o.Root && o.has("nft") {
		objects, _ := o.nft(ctx, "list", "chains") // checkForeignChains reports the error
		for _, object := range objects {
			if c := object.Chain; c != nil && c.Hook == "forward" && !c.fromTables() && !strings.HasPrefix(c.Table, "vipd") {
				places = append(places, "the nft chain "+c.place())
			}
		}
	}
	if places == nil {
		return []Finding{fine("no other program has rules for forwarded packets that fast_path would bypass")}
	}
	return []Finding{note(fmt.Sprintf("other programs' rules see only the first packets of connections in fast_path: %s", list(places)),
		"their counters miss the other packets, and a drop that is added later does not end open connections; see the fast path in docs/modes.md", "")}
}
