//! Authenticates an operator's request, finds its route and calls the action behind it.

use super::auth::{AdminIdentity, Tokens};
use super::routes::{self, AdminAction};
use super::{views, wire};
use crate::audit::Actor;
use crate::backend::Backend;
use crate::front::dashboard;
use crate::front::metrics_page::MetricsPage;
use crate::health::Health;
use crate::metrics::{Metrics, Refused};
use crate::proxy::LiveRoutes;
use crate::recent_denials::RecentDenials;
use crate::rule_files::RuleFiles;
use crate::rulebook::Rulebook;
use crate::timers;
use crate::web::{Answer, BodyBound, Call, ForeignRequest, Hosts, JSON, WebHandler};
use http::{HeaderValue, StatusCode, header};
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate::{Attributes, Check, Limiter, Policy};
use tokio::time::Instant;

/// Answers requests to the admin API.
pub(crate) struct AdminHandler<S> {
    pub(super) limiter: Limiter<S>,
    pub(super) rulebook: Arc<Rulebook<S>>,
    /// Rule files of Envoy's reference service, when they decide over gRPC in place of the policy.
    pub(super) rule_files: Option<Arc<RuleFiles<S>>>,
    /// The routes of the proxy, if it is on.
    pub(super) upstreams: Option<Arc<LiveRoutes>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
    pub(super) page: Arc<MetricsPage<S>>,
    pub(super) recent: RecentDenials,
    tokens: Tokens,
    hosts: Hosts,
    /// Rate limits failed authentication by client address.
    guesses: Limiter,
    pub(super) started: Instant,
}

/// Wrong tokens that one IPv4 address, or one IPv6 /64, may send.
const GUESSES: &str = "{ version: 1, rules: [{ name: guesses, key: [ip], limits: [10/min] }] }";

impl<S: Backend> WebHandler for AdminHandler<S> {
    type Route = ();

    /// Whether a request carries a valid token.
    fn knows(&self, call: &Call<'_>) -> bool {
        self.tokens.identity(call).is_some()
    }

    /// Makes every check that needs only the head, so that no body is read from a client without a token.
    fn begin(&self, call: &Call<'_>) -> Result<((), BodyBound), Answer> {
        match self.hosts.check(call) {
            Ok(()) => {}
            Err(ForeignRequest::Page) if dashboard::follows_link(call) => {}
            Err(foreign) => {
                self.metrics.refused(Refused::Foreign);
                return Err(self.hosts.refusal(foreign));
            }
        }
        if call.path == routes::LIVE && call.method == "GET" || dashboard::serves(call) {
            return Ok(((), BodyBound::bytes(0)));
        }
        let identity = self.tokens.identity(call).ok_or_else(|| self.unauthenticated(call))?;
        let route = routes::find(call)?;
        if identity.role < route.role {
            tracing::warn!(peer = %call.peer, who = &*identity.name, path = route.path, "Reader token used for an operator's endpoint");
            return Err(forbidden());
        }
        Ok(((), route.body(call)?))
    }

    async fn answer(&self, (): (), call: &Call<'_>) -> Answer {
        if call.path == routes::LIVE {
            return Answer::fixed(JSON, "{\"status\":\"live\"}\n");
        }
        if dashboard::serves(call) {
            return dashboard::answer(call);
        }
        // `begin` has authenticated the request. The user is determined again because the audit log names it. The users file may
        // have changed since.
        let Some(identity) = self.tokens.identity(call) else { return self.unauthenticated(call) };
        match routes::find(call) {
            Ok(route) if identity.role >= route.role => {
                self.act(route.action, call, &identity).await.unwrap_or_else(|answer| answer)
            }
            Ok(_) => forbidden(),
            Err(answer) => answer,
        }
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl<S: Backend> AdminHandler<S> {
    pub(crate) fn new(
        page: Arc<MetricsPage<S>>,
        tokens: Tokens,
        (listens, hosts): (SocketAddr, &[String]),
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let guesses = Limiter::in_memory(Policy::parse(GUESSES)?)?;
        let hosts = Hosts::of_operators(listens, hosts);
        let started = timers::now();
        Ok(Self {
            limiter: page.limiter.clone(),
            rulebook: Arc::clone(&page.rulebook),
            rule_files: page.rule_files.clone(),
            upstreams: page.upstreams.clone(),
            metrics: Arc::clone(&page.metrics),
            health: Arc::clone(&page.health),
            recent: page.top.recent(),
            page,
            tokens,
            hosts,
            guesses,
            started,
        })
    }

    async fn act(
        &self,
        action: AdminAction,
        call: &Call<'_>,
        identity: &AdminIdentity,
    ) -> Result<Answer, Answer> {
        let actor = Actor { who: &identity.name, peer: call.peer };
        match action {
            AdminAction::Metrics => Ok(self.page.text()),
            AdminAction::OpenApi => Ok(Answer::fixed(JSON, routes::OPENAPI)),
            AdminAction::Status => Ok(self.status()),
            AdminAction::Control => Ok(self.control()),
            AdminAction::Audit => self.audit(call),
            AdminAction::Rules => Ok(self.rules()),
            AdminAction::Policy => self.policy(call),
            AdminAction::RuleFiles => self.rule_files_text(),
            AdminAction::PutPolicy => self.put_policy(call, actor).await,
            AdminAction::DeletePolicy => self.delete_policy(call, actor).await,
            AdminAction::Peek => self.peek(call).await,
            AdminAction::Explain => self.explain(call),
            AdminAction::Playground => self.playground(call).await,
            AdminAction::Reset => self.reset(call, actor).await,
            AdminAction::Who => self.who(call).await,
            AdminAction::WhoAmI => Ok(views::who_am_i(identity)),
            AdminAction::PutRules => self.put_change::<wire::PutRuleBody>(call, actor).await,
            AdminAction::PutOverrides => {
                self.put_change::<wire::PutOverrideBody>(call, actor).await
            }
            AdminAction::PutTiers => self.put_change::<wire::PutTierBody>(call, actor).await,
            AdminAction::PutSignals => self.put_signals(call, actor),
            AdminAction::Upstreams => Ok(self.upstreams()),
            AdminAction::Leases => Ok(self.leases_status()),
            AdminAction::Nodes => Ok(self.nodes()),
            AdminAction::Top => self.top(call).await,
            AdminAction::Denials => self.denials(call),
            AdminAction::PutUpstreams => self.put_upstream(call, actor).await,
        }
    }

    /// Answers a request with a missing or wrong token. A client that guesses tokens soon gets only 429.
    fn unauthenticated(&self, call: &Call<'_>) -> Answer {
        self.metrics.refused(Refused::Unauthorized);
        let guesser = Attributes::new().from_address(call.peer);
        let guess = self.guesses.check_now(&Check::new(&guesser));
        if let Some(refused) = guess.ok().filter(|verdict| !verdict.allowed()) {
            let wait = refused.retry_after().map_or(60, |wait| wait.as_secs_ceil().max(1));
            return Answer::problem(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens")
                .with(header::RETRY_AFTER, HeaderValue::from(wait));
        }
        tracing::warn!(peer = %call.peer, "Unauthenticated request to the admin listener");
        let detail = "show a token: `authorization: Bearer …`; it lies in the data directory";
        Answer::problem(StatusCode::UNAUTHORIZED, detail)
            .with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }
}

fn forbidden() -> Answer {
    let detail = "a reader's token may not do this; use the operator's token";
    Answer::problem(StatusCode::FORBIDDEN, detail)
}
