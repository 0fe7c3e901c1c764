"""Why a judged episode is safe or unsafe: signal against limit, the bodies involved, any formula asked of it."""
