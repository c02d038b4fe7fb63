package local

// Lapse is a reason why the gate must be closed, or may have closed because of its timeout.
type Lapse string

// These are the reasons for a lapse.
const (
	// NotRefreshed means that the gate was not refreshed in time. If the cause was an unconfirmed
	// session, the reason is NotConfirmed instead.
	NotRefreshed Lapse = "not refreshed"
	NotConfirmed Lapse = "not confirmed"
	Changed      Lapse = "changed by another program"
	StillBound   Lapse = "a VIP can't be removed"
)
